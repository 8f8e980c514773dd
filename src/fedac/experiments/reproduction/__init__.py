"""The paper's experiments beside the authors' published numbers."""
