"""Running a task's function and saying how that ended. Knows functions and never sees a row."""
