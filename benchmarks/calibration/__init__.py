"""The same requests at the same times, answered by the real service and by the simulated one."""
