"""What a person looks at: figures."""
