#!/bin/sh
# First start of the coordinator's container: nodes of the cluster come in every role without a password, by a network of their own.
set -eu
sed -i "1i host all all $NODES_SUBNET trust" "$PGDATA/pg_hba.conf"
