"""The learned split beside the planner's own, on days that it has not seen."""
