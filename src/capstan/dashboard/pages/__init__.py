"""The pages, one module for each part of the menu. None knows another."""
