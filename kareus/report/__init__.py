"""Reports: the summary in the terminal, and one page that needs nothing but a browser.

`workload`, `campaign` and `fleet` read the tables and plans of each, and write pages and summaries; what they share is
beside them.
"""
