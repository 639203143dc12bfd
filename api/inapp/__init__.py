"""In-app messages: a wallet signs in (EIP-4361), its sockets get what is in its inbox, and their answers empty it.

`origins` says which pages may ask, `eip4361` reads what a wallet signed, `wallets` checks who signed it, `sessions` turns it
into a token, `sockets` knows who is connected to this process, `feed` moves messages between them and the database.
`sdk/` is the browser's side.
"""
