# CKPT101 unsafe | model(batch)
# prelude: ddp

def main(model, stages, optimizer):
    for batch in stages:
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
        wrapper = DDP(model)
        wrapper(batch).loss.backward()
