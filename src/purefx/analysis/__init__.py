"""What a caller can observe of a recorded program: facts, read off the recording and nothing else."""
