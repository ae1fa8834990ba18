"""The response cache of the RPC gateway.

`gateway` is the way in. `rules` and `policy` say what may be kept and for how long, `canonical` when two requests ask
the same, `memory` keeps answers in the process, `persistent` and `remote` keep final ones outside it, and `coalesce`
makes one upstream call of several equal ones.
"""
