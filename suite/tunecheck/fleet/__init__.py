"""A fleet session: the same tier on every card of every node, gathered as it comes in, judged as a whole."""
