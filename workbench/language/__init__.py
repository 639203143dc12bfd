"""The language of events and automations: pure values and rules, and the only place where their meaning lives.

Live runs, dry runs, simulations and backtests all go through `advance`. Nothing here does I/O, reads a clock,
draws a random number or logs; time, identity and chance are arguments.
"""
