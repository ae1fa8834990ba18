"""The development chains: starts them, deploys to them, funds accounts. Only the command line and `app.py` import this
package; it must stay cheap to import, because the chains' own child processes import it too.
"""
