"""Publications: their validation, and the forms in which they are delivered."""
