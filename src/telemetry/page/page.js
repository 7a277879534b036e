<!doctype html><title>Ebbtide</title>
