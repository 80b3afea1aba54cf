"""Tools of the fault tests: clients with a ledger, proxies, disks that fail, hooks in processes."""
