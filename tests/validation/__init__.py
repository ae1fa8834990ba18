"""Conformance tests of the validation of user operations (ERC-7562), one for each rule."""
