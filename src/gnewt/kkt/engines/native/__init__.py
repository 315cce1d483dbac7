"""The native engine: elimination by the C++ library."""
