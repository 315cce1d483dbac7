"""Elimination of K = H + μI along a plan: three engines behind one interface. Once per shift."""
