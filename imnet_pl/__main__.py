"""Entry point of ``python -m imnet_pl VERB ...``."""

if __name__ == "__main__":
    import sys

    from imnet_pl.cli import main

    sys.exit(main())
