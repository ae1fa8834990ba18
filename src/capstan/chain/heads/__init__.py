"""The heads of networks: what each upstream reports, and the one head that is announced from it."""
