"""What a self-contained page is made of, for the paper's reproduction and for the reports of runs alike.

==================  ===============================================================
``page``            sections with figures, tables and a reading, in one HTML file
``charts``          small charts as SVG
``figures``         larger ones by matplotlib, as PNG and PDF
``escape``          text that came out of a file, made harmless where it is shown
==================  ===============================================================
"""
