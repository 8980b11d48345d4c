"""Count how odd inputs, damaged files and killed runs end.

    python -m tools.fuzz detector --tries 10000     # odd tables, labels, weights, settings and images
    python -m tools.fuzz readers --tries 10000      # damaged and crafted files for every reader
    python -m tools.fuzz.files                      # every byte of a saved file matters
    python -m tools.fuzz.runs                       # training runs that are killed, damaged or short of disk

Each writes a file in results/bench, from which ``tools.pages`` makes results/coverage/README.md.
"""
