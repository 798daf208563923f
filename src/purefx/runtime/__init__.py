"""The callable: a prologue that checks and unpacks, the compiled graph, an epilogue that makes eager's effects."""
