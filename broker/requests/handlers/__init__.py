"""One module for each api that is served, with the function `handle`; see `dispatch`."""
