"""Reports: the summary in the terminal, and one page that needs nothing but a browser.

Reads every table and plan of a workload; writes `results/<workload>/report/page.html` and `summary.txt`.
"""
