"""The servers that benchmarks compare Capstan with, each a program of its own."""
