"""The files of the page at `/` and of the interface's description at `/docs`: HTML, style sheets, scripts, images.

Never fetches anything from elsewhere and knows no request: foreign code lies beside its licence (docs/operations.md).
Called by planner.service.http.operations.
"""
