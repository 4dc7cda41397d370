"""Reports: the summary in the terminal, and one page that needs nothing but a browser.

`workload`, `campaign`, `fleet` and `advice` read the tables and plans of each and make a `Page` of them: sections,
figures, downloads and a text. `page.write_page` writes it; what else they share is beside them.
"""
