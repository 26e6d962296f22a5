"""What dev.py is made of: interpreters and environments, database servers, the test matrix. Standard library only."""
