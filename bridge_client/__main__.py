"""Where the program `bridge-client` starts, also as `python -m bridge_client`."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends the process without a word."""
    # One that was told to ignore Ctrl-C (`nohup`, a script's `&`) goes on to.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bridge_client import cli

    cli.main()


if __name__ == "__main__":
    main()
