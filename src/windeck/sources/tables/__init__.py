"""What a table is made of: columns, series, time stamps, and how it tells of itself."""
