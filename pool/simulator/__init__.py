"""The pool in virtual time: many devices, their failures, and the requests of a day, under the planner that runs live.

`scenario` says what is there, `reading` loads it and refuses what is wrong. `simulation` runs it on simpy's clock:
the planner's `tick` decides, `world` carries it out on the real ledger. Requests are simulated one by one
(`events`) or, where they are too many, by interval (`intervals`); both from the same measured batch times.
"""
