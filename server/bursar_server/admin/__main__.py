"""Entry point of `python -m bursar_server.admin`."""

from bursar_server.admin.cli import main

if __name__ == "__main__":
    main()
