"""Tables, figures and pages: made from run folders alone; no tensors here."""

PAGE = "report.html"  # in the folder of the run, or of the runs
