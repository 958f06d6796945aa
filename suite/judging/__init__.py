"""What the checks share: pure functions of a trace and of numbers. Standard library only, no sibling of the checks."""
