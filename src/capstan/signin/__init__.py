"""People: who may sign in to the dashboard, with what, and where they are signed in."""
