"""Offline replay: what another policy would have been worth, from the log, with honest intervals.

`replay.replay` is the way in: a `log.Log` (`sources.read_log`), a candidate (`candidates.load_candidate`) and what it
is compared with give a `report.Report`. Its parts stand alone: `estimators`, `intervals` and `sequences` take arrays,
`audit` and `validation` a log, `gate` what they found.
"""
