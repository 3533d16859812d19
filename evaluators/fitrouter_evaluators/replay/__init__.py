"""Off-policy evaluation of routing policies on logged traffic.

`evaluation.evaluate` takes a log (`log.sources.read_log`), a candidate and the policy it is compared with
(`candidates.load.load_candidate`) and returns a `report.Report`.
"""
