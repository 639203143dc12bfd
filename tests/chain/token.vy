# pragma version ~=0.4.3
# A token of the tests: anybody mints, and one call can make any number of transfers.

event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    amount: uint256

event Note:
    author: indexed(address)
    tag: indexed(String[32])
    text: String[100]
    numbers: DynArray[int128, 5]

balanceOf: public(HashMap[address, uint256])

@external
def mint(receiver: address, amount: uint256):
    self.balanceOf[receiver] += amount
    log Transfer(sender=empty(address), receiver=receiver, amount=amount)

@external
def transfer(receiver: address, amount: uint256) -> bool:
    self.balanceOf[msg.sender] -= amount
    self.balanceOf[receiver] += amount
    log Transfer(sender=msg.sender, receiver=receiver, amount=amount)
    return True

@external
def scatter(first: uint256, count: uint256):
    for number: uint256 in range(count, bound=1000):
        log Transfer(sender=empty(address), receiver=convert(first + number, address), amount=number)

@external
def note(tag: String[32], text: String[100], numbers: DynArray[int128, 5]):
    log Note(author=msg.sender, tag=tag, text=text, numbers=numbers)
