"""``python -m fvnce``."""

from .app.commands import main

if __name__ == "__main__":
    main()
