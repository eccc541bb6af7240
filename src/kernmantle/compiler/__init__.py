"""From programs to loop nests and schedules, without a machine. Standard library only."""
