"""`python -m bursar_ledger.audit` is `bursar-audit`."""

from .cli import main

main(prog_name="bursar-audit")
