"""The report on a campaign: its tables, figures and pages in one folder."""
