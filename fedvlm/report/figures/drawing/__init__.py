"""What several figures are drawn with; no figure itself."""
