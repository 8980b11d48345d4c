"""The report of a run: one file for each section, which computes it, checks it and shows it.

==================  ===============================================================
``page``            the list of sections, and the page made of them
``context``         the run and the rows that every section looks at
``verdict``         how good it is, why the threshold is there, what to do next
``scores``          scores with the threshold, and probabilities
``top_anomalies``   the strangest rows, with every part of their scores
``importance``      columns, or pixels, by their share in the score
``plane``           codes, or rows, in two dimensions
``health``          how each column was read, what is missing, what was left out
``training``        losses and live noise
``contrast``        data against noise: log-ratios, calibration, log Z
``reconstruction``  reconstructions of data, noise and outliers; samples
``explorer``        sliders for the scoring rule
``images``          images as PNG text
==================  ===============================================================
"""
