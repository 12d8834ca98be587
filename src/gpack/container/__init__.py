"""The container: header, directory, footer and manifest; sections are bytes here."""
