"""Entry point for people and launchers: ``python cli.py VERB ...``."""

if __name__ == "__main__":
    import sys

    from imnet_pl.cli import main

    sys.exit(main())
