"""Files of other trainers: what their settings mean to Kareus, read and written by the same tables.

A trainer is a table of `tables/`: what each of its keys means, which keys matter and cannot be said, and which do not
matter. `syntax` reads files, `shell` scripts, `meaning` is what trainers say in other products than Kareus; `reading`
and `writing` go through a table in both directions.
"""
