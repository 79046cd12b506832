"""Requests that arrive while others run: open-loop load, policies for τ, and what a service is measured by."""
