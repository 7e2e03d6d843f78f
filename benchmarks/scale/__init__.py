"""A day of thousands of devices in virtual time: `day` says what there is, `runs` simulates it, elsewhere."""
